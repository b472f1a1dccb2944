package rendezvous

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// The ranks of a job share a store of keys and values, and each rank should be one process. A World
// describes the job and the rank of this process, called "this rank" below. Suppose that rank 1 is
// started twice by mistake, as process 7 and then as process 8. Each would change keys on which the
// other relies. The server of the store prevents this as follows:
//
//   - Each process begins with a greeting. It contains the process, the rank, and a text that
//     identifies the job: "symmem/run5/0/2" for run ID "run5", 0 restarts and 2 ranks.
//   - The greeting of process 7 arrives first and claims rank 1. The claim lasts as long as the
//     connection on which this greeting was sent, so it ends at the latest when process 7 exits.
//   - Meanwhile, rank 1 is taken for other processes. Process 8 learns this from the answer to its
//     greeting. It repeats the greeting for a while, and then fails with a RankTakenError.
//   - A probe is a greeting that claims nothing. It only asks whether the rank is taken.
//
// PyTorch's server does not support greetings. With it, no rank is ever taken.

// attemptPrefix returns jobPrefix without the number of ranks, as in "symmem/run5/0". It contains
// the number of restarts, so each attempt to run the job has a different one.
func (w *World) attemptPrefix() string {
	runID := cmp.Or(w.RunID, "none")
	return fmt.Sprintf("symmem/%s/%d", runID, w.Restart)
}

// jobPrefix returns the text that identifies the job, as in "symmem/run5/0/2". Most keys of the job
// in the store begin with it.
func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

// jobRank identifies a rank among those of all jobs that use the same store. The server keeps at
// most one claim for each.
type jobRank struct {
	job  string // a World.jobPrefix
	rank int
}

// processID identifies this process in greetings. It is random, because the number that the system
// gives to a process is unique only on one machine.
var processID = rand.Text()

// hostName returns the machine's name, or "" if it cannot be read.
func hostName() string {
	name, _ := os.Hostname()
	return name
}

// describeProcess returns a description of this process for users, as in "process 7 on host1".
func describeProcess() string {
	return fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(hostName(), "an unknown machine"))
}

// claimGreeting returns a greeting that claims this rank for this process. The field KeyPrefix is
// empty, because Connect determines it only after the claim.
func (w *World) claimGreeting() greeting {
	return greeting{
		Job: w.jobPrefix(), Rank: w.Rank, Process: processID, Description: describeProcess(),
	}
}

// probeGreeting returns a probe for this rank.
func (w *World) probeGreeting() greeting {
	g := w.claimGreeting()
	g.IsProbe = true
	return g
}

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank         int
	OtherProcess string // description for users, such as "process 7 on host1"
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, "+
		"or another job has the same run id or the same MASTER_ADDR and MASTER_PORT",
		e.Rank, e.OtherProcess)
}

// rankTakenPrefix is the first part of the server's answer if the rank is taken. The second part
// describes the other process. A whole answer is "the rank is taken: process 7 on host1".
const rankTakenPrefix = "the rank is taken: "

const (
	// claimTimeout limits how long a greeting is repeated while the rank is taken. If the other
	// process has just exited, the server needs less time to notice this and to end the claim.
	claimTimeout = 2 * time.Second

	// claimPause is the mean pause before a greeting is repeated. It is short, so that a process
	// continues soon after the claim of the other process has ended.
	claimPause = 50 * time.Millisecond
)

// sendGreeting sends a greeting, and repeats it while the rank is taken. It gives up with a
// RankTakenError after claimTimeout, or if ctx ends during a pause. isSupported reports whether the
// server supports greetings.
func sendGreeting(ctx context.Context, c *Client, g greeting) (isSupported bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}

	deadline := time.Now().Add(claimTimeout)
	for {
		// A server that supports greetings recognizes greetingKey. To PyTorch's server, this is an
		// ordinary CompareSet. It returns encoded, and stores nothing, because the key is missing and
		// the expected value is not empty.
		answer, err := c.CompareSet(ctx, greetingKey, encoded, encoded)
		if err != nil {
			return false, err
		}

		otherProcess, isTaken := strings.CutPrefix(string(answer), rankTakenPrefix)
		if !isTaken {
			isSupported = string(answer) == greetingAnswer
			return isSupported, nil
		}

		takenErr := &RankTakenError{Rank: g.Rank, OtherProcess: otherProcess}
		if time.Now().After(deadline) {
			return false, takenErr
		}

		hasPaused := sleepWithJitter(ctx, claimPause) // false if ctx ends during the pause
		if !hasPaused {
			return false, takenErr // It helps the user more than ctx.Err() would.
		}
	}
}

// claimRank claims this rank on a new connection to the store. The claim lasts until the returned
// client is closed. A process must claim its rank before it changes the rank's keys.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.claimGreeting())
	if err != nil {
		closeErr := c.Close()
		return nil, errors.Join(err, closeErr)
	}

	return c, nil
}

// probeTimeout limits checkRankNotTaken, which may repeat a probe for claimTimeout. The additional
// second is for connecting first, and for the last answer.
const probeTimeout = claimTimeout + time.Second

// checkRankNotTaken returns a RankTakenError if this rank is taken in the store at the endpoint. It
// returns nil if the rank is not taken, or if the store cannot be asked.
func checkRankNotTaken(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil // The job has no store at the endpoint.
	}

	_, err = sendGreeting(ctx, c, w.probeGreeting())
	_ = c.Close()
	var taken *RankTakenError
	if errors.As(err, &taken) {
		return taken
	}

	return nil // The rank is not taken, or the store has failed.
}

// sizeKey returns the key under which a rank stores WORLD_SIZE, its number of expected ranks. Ranks
// that expect different numbers must find each other's keys. Therefore the key does not contain
// this number, unlike jobPrefix.
func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch reports an absent rank whose WORLD_SIZE differs from this rank's. It returns
// the end of an error message, as in "; WORLD_SIZE is 3 on rank 1, but 2 on this rank". If it finds
// no such rank, it returns "". absent lists the ranks that have not connected.
func (w *World) describeSizeMismatch(ctx context.Context, c *Client, absent []int) string {
	// The caller looks for absent ranks after ctx has ended, so ctx cannot limit the requests.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	ownSize := strconv.Itoa(w.Size)
	for _, rank := range absent {
		size, isSet, err := c.Peek(ctx, w.sizeKey(rank))
		isDifferent := err == nil && isSet && string(size) != ownSize
		if isDifferent {
			return fmt.Sprintf("; WORLD_SIZE is %s on rank %d, but %s on this rank",
				size, rank, ownSize)
		}
	}

	return ""
}
