// Sets the theme that was chosen, if any, before the page is drawn. A classic script, because modules run later.
const chosen = localStorage.getItem("moorage.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
