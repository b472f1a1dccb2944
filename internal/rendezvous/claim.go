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

// A process claims its rank with a greeting to the job's store, and holds the claim until the
// connection ends. If a rank is started twice by mistake, the store answers the second process that
// the rank is taken. A probe is a greeting that only asks whether the rank is taken. PyTorch's
// stores do not support greetings.

// attemptPrefix identifies one attempt to run the job, as in "symmem/run5/0" for run ID "run5"
// after 0 restarts.
func (w *World) attemptPrefix() string {
	runID := cmp.Or(w.RunID, "none")
	return fmt.Sprintf("symmem/%s/%d", runID, w.Restart)
}

// jobPrefix identifies the job, as in "symmem/run5/0/2" for 2 ranks. Most keys of the job begin
// with it.
func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

// jobRank identifies a rank across all jobs that share a store.
type jobRank struct {
	job  string // a World.jobPrefix
	rank int
}

// processID is random, because a PID is unique only on one machine.
var processID = rand.Text()

func hostName() string {
	name, _ := os.Hostname() // "" after an error
	return name
}

// describeProcess returns a text such as "process 7 on host1".
func describeProcess() string {
	return fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(hostName(), "an unknown machine"))
}

// claimGreeting leaves KeyPrefix empty, because Connect chooses the prefix after the claim.
func (w *World) claimGreeting() greeting {
	return greeting{
		Job: w.jobPrefix(), Rank: w.Rank, Process: processID, Description: describeProcess(),
	}
}

func (w *World) probeGreeting() greeting {
	g := w.claimGreeting()
	g.IsProbe = true
	return g
}

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank         int
	OtherProcess string // such as "process 7 on host1"
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, "+
		"or another job has the same run id or the same MASTER_ADDR and MASTER_PORT",
		e.Rank, e.OtherProcess)
}

// rankTakenPrefix precedes the other process in an answer such as "the rank is taken: process 7 on
// host1".
const rankTakenPrefix = "the rank is taken: "

const (
	// claimTimeout limits how long a greeting is repeated, so that the server can notice the exit of
	// the process with the claim.
	claimTimeout = 2 * time.Second

	claimPause = 50 * time.Millisecond // mean pause before a greeting is repeated
)

// sendGreeting repeats a greeting while the rank is taken. After claimTimeout, or if ctx ends
// during a pause, it returns a RankTakenError. isSupported reports whether the server supports
// greetings.
func sendGreeting(ctx context.Context, c *Client, g greeting) (isSupported bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}

	deadline := time.Now().Add(claimTimeout)
	for {
		// greetingKey marks this CompareSet as a greeting. PyTorch's server finds the key missing, so
		// it stores nothing and returns encoded.
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

		hasPaused := sleepWithJitter(ctx, claimPause)
		if !hasPaused {
			return false, takenErr // more helpful than ctx.Err()
		}
	}
}

// claimRank claims this rank until the returned client is closed. A process must claim its rank
// before it changes the rank's keys.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.claimGreeting())
	if err != nil {
		closeErr := c.Close()
		return nil, errors.Join(err, closeErr)
	}

	return c, nil
}

// probeTimeout includes a second for dialing and the last answer.
const probeTimeout = claimTimeout + time.Second

// checkRankNotTaken returns nil unless the store at the endpoint answers that this rank is taken.
func checkRankNotTaken(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil // The job has no store at the endpoint.
	}

	_, err = sendGreeting(ctx, c, w.probeGreeting())
	_ = c.Close() // The answer is already known.
	if taken, isTaken := errors.AsType[*RankTakenError](err); isTaken {
		return taken
	}

	return nil
}

// sizeKey returns the key under which a rank stores its WORLD_SIZE. Unlike jobPrefix, it does not
// contain that number, so that ranks with different numbers find each other's keys.
func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch looks for an absent rank whose WORLD_SIZE differs from this rank's. It
// returns the end of an error message, as in "; WORLD_SIZE is 3 on rank 1, but 2 on this rank", or
// "".
func (w *World) describeSizeMismatch(ctx context.Context, c *Client, absent []int) string {
	// Ranks are absent only after ctx has ended, so it cannot bound the requests.
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
