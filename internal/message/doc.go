// Package message decides which Send of one rank belongs to which Recv of another.
//
// A Matcher is the receiving side of a rank. Messages are numbered at the call: the k-th Send of a
// pair of ranks with a tag has number k, and belongs to the k-th Recv that takes from that rank
// with that tag. The receives of a tag claim in the order of their calls. One for a certain source
// claims that source's next number at once, whether it has arrived or not. One for any source
// claims the message that has arrived first of those whose turn it is, and the later receives of
// its tag wait until it has. So what a receive gets depends on the order of calls, and for any
// source on the order of arrivals, and never on the order in which streams come to their work.
//
// A Tally counts the calls of a rank, and knows how many of them came before a given collective.
//
// Both are pure: events in, decisions out, without clock, lock or I/O. Their callers serialise the
// calls.
package message
