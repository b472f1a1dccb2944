// Package bench measures collectives and the times for tuning tables. It compares variants with
// baselines in the same process at the same time. Go benchmarks next to the code measure calls that
// do not involve other ranks.
//
// The speed of a machine changes over time: when a virtual processor is moved, all times change by
// a factor of two to four within seconds. So the package never compares results of different runs.
// It alternates between batches of all variants and reports their median, minimum, 10th and 90th
// percentile, and the ratio of two medians of one run. The times of a collective's paths differ
// little, so paths are compared by the median of the ratios of neighbouring batches. Reports on
// collectives include the round-trip time between two cores before and after the measurement
// ([Probe]). Two runs are comparable only if these times agree.
//
// A result can have a bar, the design's upper limit in nanoseconds.
//
// The package writes tables only to writers passed to it. Commands parse flags and print.
package bench
