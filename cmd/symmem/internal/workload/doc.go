// Package workload contains code shared by all programs that test or measure collectives: the data
// that a rank sends and must receive ([Pattern]), a rank's unrelated allocations ([Noise]), the
// exchange of results between ranks ([Gatherer]), and the common options ([Config]).
package workload
