package launch

import (
	"fmt"
	"syscall"
)

// Result describes how a job ended.
type Result struct {
	Code        int    `json:"code"`         // exit code of the first rank that failed, or 0
	FirstFailed int    `json:"first_failed"` // rank, or -1
	Exits       []Exit `json:"ranks"`
	// Signal is the first signal that the launcher received, or 0. SIGPIPE means that the reader of
	// its output is gone.
	Signal syscall.Signal `json:"-"`
}

// Exit describes how one rank exited.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code or, as in shells, 128 + Signal.
	Code      int            `json:"code"`
	Signal    syscall.Signal `json:"signal,omitempty"` // signal that killed the rank, or 0
	exitIndex int            // position of this exit in the order of all exits
}

func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		return fmt.Sprintf("rank %d (process %d) was killed by signal %d (%s)",
			e.Rank, e.PID, int(e.Signal), e.Signal)
	case e.Code != 0:
		return fmt.Sprintf("rank %d (process %d) failed with code %d", e.Rank, e.PID, e.Code)
	}

	return fmt.Sprintf("rank %d (process %d) exited successfully", e.Rank, e.PID)
}
