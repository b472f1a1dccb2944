// Package bench measures collectives and the times for tuning tables. It compares variants with
// baselines in the same process at the same time. Calls that do not involve other ranks are
// measured by Go benchmarks next to the code.
//
// The speed of machines drifts. When a virtual processor is moved, all times change by a factor of
// two to four within seconds. Therefore results of different runs are not compared; instead,
// batches of all variants alternate. Reports contain the median of the batches with the minimum and
// the 10th and 90th percentile, and the ratio of two medians of one run. The times of a
// collective's paths differ little, so paths are compared by the median of the ratios of
// neighbouring batches. Reports on collectives include the round-trip time between two cores before
// and after the measurement ([Probe]). Two runs are comparable only if these times agree.
//
// A result can have a bar, which is the design's upper limit in nanoseconds.
//
// The package writes tables only to writers passed to it. Commands parse flags and print.
package bench
