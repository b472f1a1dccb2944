package launch

import (
	"fmt"
	"syscall"
)

// Result is how a job ended.
type Result struct {
	// Code is the exit code of the job: that of the first rank that failed, or 0.
	Code int `json:"code"`
	// First is the rank that failed first, or -1 if none did.
	First int `json:"first_failed"`
	// Exits are the ends of all ranks, by rank.
	Exits []Exit `json:"ranks"`
	// Signal is the first signal that came from outside and was passed on, SIGPIPE if the output of
	// the ranks has lost its reader, or 0.
	Signal syscall.Signal `json:"-"`
}

// Exit is how one rank ended.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code, or 128 + Signal as shells have it.
	Code int `json:"code"`
	// Signal is what ended the rank, or 0.
	Signal syscall.Signal `json:"signal,omitempty"`
	// turn counts the ends of ranks as they came. Exits arrive in another order, as the output
	// of one rank takes longer than that of another.
	turn int
}

// String says in words how the rank ended.
func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		return fmt.Sprintf("rank %d (process %d) was ended by signal %d, %s",
			e.Rank, e.PID, int(e.Signal), e.Signal)
	case e.Code != 0:
		return fmt.Sprintf("rank %d (process %d) failed with code %d", e.Rank, e.PID, e.Code)
	}
	return fmt.Sprintf("rank %d (process %d) ended well", e.Rank, e.PID)
}
