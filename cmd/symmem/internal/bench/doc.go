// Package bench measures collectives and the times for tuning tables. It compares variants with
// baselines in the same process at the same time. Calls that do not involve other ranks are
// measured by Go benchmarks next to the code.
//
// The speed of a machine changes over time. When a virtual processor is moved, all times change by
// a factor of two to four within seconds. Therefore the package does not compare results of
// different runs. Instead, it alternates between batches of all variants. Reports contain the
// median, the minimum, the 10th percentile and the 90th percentile of the batches. They also
// contain the ratio of two medians of one run. The times of a collective's paths differ little, so
// paths are compared by the median of the ratios of neighbouring batches. Reports on collectives
// include the round-trip time between two cores before and after the measurement ([Probe]). Two
// runs are comparable only if these times agree.
//
// A result can have a bar. The bar is the design's upper limit in nanoseconds.
//
// The package writes tables only to writers passed to it. Commands parse flags and print.
package bench
