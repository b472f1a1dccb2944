// Package workload has what all programs that test or measure collectives share: what a rank sends
// and must receive ([Pattern]), memory that each rank allocates for itself meanwhile ([Noise]), a
// way for ranks to tell each other what they found ([Desk]), and the options that all ranks need
// alike ([Config]).
package workload
