package launch

import (
	"fmt"
	"syscall"
)

// Result is how a job ended.
type Result struct {
	// Exits are the ends of all ranks, by rank.
	Exits []Exit
	// First is the rank that failed first, or -1 if none did.
	First int
	// Code is the exit code of the job: that of the first rank that failed, or 0.
	Code int
	// Signal is the first signal that came from outside and was passed on, or 0.
	Signal syscall.Signal
}

// Exit is how one rank ended.
type Exit struct {
	Rank, PID int
	// Code is the exit code, or 128 + Signal as shells have it.
	Code int
	// Signal is what ended the rank, or 0.
	Signal syscall.Signal
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
