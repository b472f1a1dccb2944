// Package bench measures symmem against baselines that run in the same process at the same time:
// collectives, submissions, and the times from which a tuning table is made. What one call
// costs that meets no other rank is measured by benchmarks of Go next to the code.
//
// Machines drift: a virtual processor that moves changes every figure by a factor of two to four
// within seconds. So nothing is compared across runs: batches of all variants take turns. What is
// reported is the median of the batches with the least and the 10th and 90th percentile, and the
// ratio of two medians of one run; paths of a collective, whose times differ little, are compared
// by the median of the ratios of neighbouring batches. Collectives are tagged with the round trip
// between two cores before and after ([RoundTrip]): two runs compare only if those agree.
//
// A figure can have a bar: the most nanoseconds that the design allows itself.
//
// The package prints nothing but tables into writers that it is given, and parses no flags; that is
// what the commands do.
package bench
