// Package workload contains the common code of commands that test or measure collectives. [Pattern]
// defines the data that a rank sends and must receive, [Noise] makes unrelated allocations, and
// [Gatherer] exchanges results between ranks.
package workload
