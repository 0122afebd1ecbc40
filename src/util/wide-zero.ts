// The zero that times and bytes begin with.

/**
 * Negative zero: a double where 0 is a small integer. A field that begins with it holds times past 2^31 us (36 minutes), many bytes and shares of them
 * as it is; one that begins with 0 changes its kind with the first of these, and all code that ever looked at its object is compiled anew.
 */
export const wideZero = -0;
