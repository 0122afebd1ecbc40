// Whether this is a run in CI, where nothing is left out for want of a tool.
export const inCi = process.env.CI !== undefined;
