// Package workload contains code shared by all programs that test or measure collectives. [Pattern]
// defines the data that a rank sends and must receive, [Noise] makes allocations that are unrelated
// to the test, [Gatherer] exchanges results between ranks, and [Config] holds common options.
package workload
