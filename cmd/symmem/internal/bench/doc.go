// Package bench measures collectives and the times for tuning tables. It compares variants with
// baselines in the same process at the same time. Calls that do not involve other ranks are
// measured by Go benchmarks next to the code.
//
// The speed of a virtual machine can change by a factor of two to four within seconds. Therefore,
// the package never compares results of different runs. It alternates between batches of all
// variants, and reports the ratio of two medians of the same run. Paths differ less, so they are
// compared by the median of the ratios of adjacent batches. Reports also contain the round-trip
// time between two cores before and after the measurement ([Probe]). Two runs are comparable only
// if these times agree.
package bench
