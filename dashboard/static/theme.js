// Before the page is drawn: the theme that was chosen, if any. A classic script, for modules run later.
const chosen = localStorage.getItem("moorage.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
