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

// A process claims its rank by sending a greeting to the job's store. The claim lasts until the
// connection ends. If a rank is started twice by mistake, the store rejects the second claim. A
// probe is a greeting that only asks whether the rank is taken. PyTorch's stores support neither.

// attemptPrefix identifies one attempt to run the job, as in "symmem/run5/0" for run ID "run5"
// after 0 restarts.
func (w *World) attemptPrefix() string {
	runID := cmp.Or(w.RunID, "none")
	return fmt.Sprintf("symmem/%s/%d", runID, w.Restart)
}

// jobPrefix is the prefix of most keys of the job, such as "symmem/run5/0/2" for 2 ranks.
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
	// If a rank is restarted, the server notices the exit of its previous process within
	// claimTimeout.
	claimTimeout = 2 * time.Second
	claimPause   = 50 * time.Millisecond // mean pause between attempts
)

// sendGreeting repeats a greeting while the rank is taken. After claimTimeout, it returns a
// RankTakenError.
func sendGreeting(
	ctx context.Context, c *Client, g greeting,
) (supportsGreetings bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}

	deadline := time.Now().Add(claimTimeout)
	for {
		// A server that does not support greetings finds no greetingKey, and returns encoded.
		answer, err := c.CompareSet(ctx, greetingKey, encoded, encoded)
		if err != nil {
			return false, err
		}

		otherProcess, isTaken := strings.CutPrefix(string(answer), rankTakenPrefix)
		if !isTaken {
			return string(answer) == greetingAnswer, nil
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

// claimRank claims this rank until the returned client is closed, if the server supports greetings.
// Call it before changing the rank's keys, because another process may own them.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.claimGreeting())
	if err != nil {
		closeErr := c.Close()
		return nil, errors.Join(err, closeErr)
	}

	return c, nil
}

// probeTimeout adds a second to the time of sendGreeting, for Dial and the last answer.
const probeTimeout = claimTimeout + time.Second

// checkRankNotTaken returns a RankTakenError if this rank is taken in the store at the endpoint. It
// ignores other errors, because another program may use the endpoint.
func checkRankNotTaken(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil
	}

	_, err = sendGreeting(ctx, c, w.probeGreeting())
	_ = c.Close() // The probe is complete.
	if taken, isTaken := errors.AsType[*RankTakenError](err); isTaken {
		return taken
	}

	return nil
}

// sizeKey returns the key for a rank's WORLD_SIZE. Ranks with another WORLD_SIZE read it, so it
// does not contain jobPrefix.
func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch finds an absent rank with a different WORLD_SIZE. It returns a suffix for an
// error message, such as "; WORLD_SIZE is 3 on rank 1, but 2 on this rank", or "" if there is none.
func (w *World) describeSizeMismatch(ctx context.Context, c *Client, absent []int) string {
	// The caller's ctx is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	ownSize := strconv.Itoa(w.Size)
	for _, rank := range absent {
		size, isSet, err := c.Peek(ctx, w.sizeKey(rank))
		hasSize := err == nil && isSet
		if hasSize && string(size) != ownSize {
			return fmt.Sprintf("; WORLD_SIZE is %s on rank %d, but %s on this rank",
				size, rank, ownSize)
		}
	}

	return ""
}
