// Whether this run is in CI, where no test skips for want of a tool.
export const inCi = process.env.CI !== undefined;
