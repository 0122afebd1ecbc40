// The initial zero of fields for times and bytes.

/**
 * Negative zero is a double, while 0 is a small integer. A field that starts with a double can hold times beyond 2^31
 * us (36 minutes) and large byte counts. A field that starts with a small integer changes its representation then, and
 * all code that uses its object is compiled again.
 */
export const wideZero = -0;
