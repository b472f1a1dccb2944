// Package message matches the Sends of one rank with the Recvs of another.
//
// A Matcher matches the receives of one rank. Messages are numbered in the order of calls: for each
// sender, receiver and tag, the k-th Send has number k. Receives with the same tag claim messages
// in the order in which they were called. A receive from a specific source immediately claims that
// source's next number, even if the message has not arrived. A receive from any source considers
// the next message of each source and claims the one that arrived first; until one has arrived,
// later receives with the same tag wait. Matches thus depend on the order of calls and, for
// receives from any source, on the order of arrivals, but never on the order in which streams
// execute the work.
//
// A Tally counts a rank's calls and reports how many of them preceded a given collective.
//
// Both types are state machines without clocks, locks or I/O. Callers must serialize calls.
package message
