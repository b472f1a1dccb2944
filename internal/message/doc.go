// Package message matches one rank's Sends with another rank's Recvs.
//
// A Matcher matches the receives of one rank. Messages are numbered in the order of calls: for
// each sender, receiver and tag, the k-th Send has number k. Receives with the same tag claim
// messages in the order in which they were called. A receive from a specific source immediately
// claims that source's next number, even if the message has not arrived. A receive from any
// source considers the next message of each source and claims the one that arrived first. Until
// one has arrived, later receives with the same tag wait. Matches thus depend on the order of
// calls and, if there are receives from any source, on the order of arrivals. They never depend
// on the order in which streams execute the work.
//
// A Tally counts a rank's calls and reports how many of them were made before a given
// collective.
//
// Both types are state machines without clocks, locks or I/O. Callers must serialize calls.
package message
