// Package bench measures symmem against baselines in the same process at the same time:
// collectives, and the times for a tuning table. Calls that involve no other rank are measured by
// Go benchmarks next to the code.
//
// Machines drift: a virtual processor that is moved changes every time by a factor of two to four
// within seconds. So results of different runs are not compared: batches of all variants
// alternate. Reports contain the median of the batches with the minimum and the 10th and 90th
// percentile, and the ratio of two medians of one run. Paths of a collective, whose times differ
// little, are compared by the median of the ratios of neighbouring batches. Reports on collectives
// include the round trip between two cores before and after ([RoundTrip]): two runs are comparable
// only if those agree.
//
// A result can have a bar, the upper limit in nanoseconds that the design sets.
//
// The package only writes tables to writers that it is passed. Commands parse flags and print.
package bench
