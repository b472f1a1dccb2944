// Package bench measures collectives and the times for tuning tables. It compares variants with
// baselines in the same process at the same time. Calls that do not involve other ranks are
// measured by Go benchmarks next to the code.
//
// The speed of a machine changes over time: when a virtual processor is moved, all times change by
// a factor of two to four within seconds. Therefore, the package never compares results of
// different runs. It alternates between batches of all variants, and reports the median, the
// minimum and the 10th and 90th percentiles of each variant, and the ratio of two medians of the
// same run. Because the times of a collective's paths differ little, paths are compared by the
// median of the ratios of adjacent batches. Reports on collectives include the round-trip time
// between two cores before and after the measurement ([Probe]), and two runs are comparable only if
// these times agree.
//
// A result can have a bar, which is an upper limit, in nanoseconds, that the design sets.
//
// The package writes tables only to writers passed to it. Commands parse flags and print.
package bench
