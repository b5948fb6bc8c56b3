// The instance that is asked about when a host is chosen: "why not there?"

export const question = { uuid: null };
