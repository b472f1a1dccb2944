package launch

import (
	"fmt"
	"syscall"
)

// Result describes the end of a job.
type Result struct {
	// Code is the exit code of the job: the code of the first rank that failed, or 0.
	Code int `json:"code"`
	// First is the rank that failed first, or -1 if no rank has failed.
	First int `json:"first_failed"`
	// Exits describes how each rank ended, by rank.
	Exits []Exit `json:"ranks"`
	// Signal is the first forwarded signal that the launcher received, or 0. It is SIGPIPE if the
	// reader of the launcher's output has closed it.
	Signal syscall.Signal `json:"-"`
}

// Exit describes the end of one rank.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code, or 128 + Signal as in shells.
	Code int `json:"code"`
	// Signal is the signal that ended the rank, or 0.
	Signal syscall.Signal `json:"signal,omitempty"`
	// endIndex is the rank's position in the order of ends. Exits are collected in another order,
	// because some ranks have more output to drain.
	endIndex int
}

// String describes how the rank ended.
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
