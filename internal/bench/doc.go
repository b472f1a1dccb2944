// Package bench measures symmem against baselines that run in the same process at the same time.
//
// Machines drift: a virtual processor that moves changes every figure by a factor of two to four
// within seconds. So nothing is compared across runs. A [Case] has one or more variants, of which
// the first is ours; each is calibrated to batches of equal length, and the batches of all variants
// take turns. What is reported is the median of the batches with the least and the 10th and 90th
// percentile, and the ratio of two medians of one run; paths of a collective, whose times differ
// little, are compared by the median of the ratios of neighbouring batches. Collectives are tagged
// with the round trip between two cores before and after ([RoundTrip]): two runs compare only if
// those agree.
//
// A figure can have a bar: the most nanoseconds that the design allows itself.
//
// The package prints nothing but tables into writers that it is given, and parses no flags; that is
// what the commands do.
package bench
