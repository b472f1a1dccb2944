// Package sim runs thousands of ranks in one process over the same cores that real ranks run:
// ledgers, agreements and registries. It answers how rounds, messages and bytes of an agreement
// grow with ranks and history, and how registration grows with segments and groups.
//
// Nothing is measured here: the package has no clock and starts no goroutine, so that a run is a
// function of its scenario. Callers who want times take them around it.
//
// Ranks that did the same share one ledger. A cluster of 4096 ranks with a history of 100,000
// events takes the memory of the ranks that deviate, plus one.
package sim
