// Package workload contains the common code of commands that test or measure collectives. [Pattern]
// defines the data of a call, [Noise] makes unrelated allocations, and [Gatherer] exchanges results
// between ranks.
package workload
