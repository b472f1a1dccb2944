// Package message matches one rank's Sends with another rank's Recvs. Callers must serialize calls.
//
// For each sender, receiver and tag, messages are numbered in the order of the Send calls. Receives
// with the same tag claim messages in the order of the Recv calls. A receive from a specific source
// claims that source's next number at once. A receive from any source claims the next message that
// arrives; until then, later receives with the same tag wait.
package message
