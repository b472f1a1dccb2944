// Package workload contains what all programs that test or measure collectives share: the data
// that a rank sends and must receive ([Pattern]), unrelated allocations of each rank ([Noise]), a
// way to exchange results between ranks ([Gatherer]), and the common options ([Config]).
package workload
