// Package message matches the Sends of one rank with the Recvs of another.
//
// A Matcher is the receiving end of a rank. Messages are numbered when they are called: for each
// pair of ranks and tag, the k-th Send has number k and matches the k-th Recv from that rank with
// that tag. The receives of a tag claim messages in the order of their calls. A receive from a
// specific source claims that source's next number at once, whether or not it has arrived. A
// receive from any source claims the message that arrived first among the next ones of all sources,
// and later receives of its tag wait for it. So the match depends on the order of calls, and for
// any source on the order of arrivals, but never on the order in which streams execute the work.
//
// A Tally counts the calls of a rank and how many of them preceded a given collective.
//
// Both are pure state machines without clock, lock or I/O. Callers must serialize the calls.
package message
