// Package workload contains code shared by all programs that test or measure collectives. [Pattern]
// defines the data that a rank sends and must receive. [Noise] makes a rank's unrelated
// allocations. [Gatherer] exchanges results between ranks. [Config] holds the common options.
package workload
