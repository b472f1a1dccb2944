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

// processID distinguishes this process from others in greetings.
var processID = rand.Text()

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank         int
	OtherProcess string // description for users, such as "process 7 on host"
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, "+
		"or another job has the same run id or the same MASTER_ADDR and MASTER_PORT",
		e.Rank, e.OtherProcess)
}

// rankTakenAnswer is the server's answer to a greeting if another process has claimed the rank. A
// description of that process follows it.
const rankTakenAnswer = "the rank is taken: "

// claimTimeout limits how long a rank that is taken is claimed again. Until then, the server
// should have noticed if the other process has exited.
const claimTimeout = 2 * time.Second

// rankClaim identifies a rank that a connection has claimed. job is a World.jobPrefix.
type rankClaim struct {
	job  string
	rank int
}

func describeProcess() string {
	return fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(hostName(), "an unknown machine"))
}

// hostName returns the machine's name, or "" if it cannot be read.
func hostName() string {
	name, _ := os.Hostname()
	return name
}

// sendGreeting sends a greeting (see greetingKey), which claims the rank unless it is a probe. If
// another process has claimed the rank, sendGreeting retries until claimTimeout, and then returns
// a RankTakenError. recordsEnds reports whether the server is symmem's, which records the ends of
// ranks.
func sendGreeting(ctx context.Context, c *Client, g greeting) (recordsEnds bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}
	end := time.Now().Add(claimTimeout)
	for {
		answer, err := c.CompareSet(ctx, greetingKey, encoded, encoded)
		if err != nil {
			return false, err
		}
		otherProcess, isTaken := strings.CutPrefix(string(answer), rankTakenAnswer)
		if !isTaken {
			return string(answer) == greetingAnswer, nil
		}
		if time.Now().After(end) || !sleepWithJitter(ctx, maxBackoff/10) {
			return false, &RankTakenError{Rank: g.Rank, OtherProcess: otherProcess}
		}
	}
}

// claimRank claims this rank on a new connection, until the returned client is closed. Only the
// process with the claim may increment the rank's call counter.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.greeting(w.jobPrefix(), ""))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// greeting returns the greeting of this process. keyPrefix is "" before Connect has determined it.
func (w *World) greeting(job, keyPrefix string) greeting {
	return greeting{
		KeyPrefix: keyPrefix, Rank: w.Rank, Job: job, Process: processID,
		Description: describeProcess(),
	}
}

// checkUnclaimed returns a RankTakenError if another process has claimed this rank in the store at
// the endpoint. Otherwise, or if there is no such store, it returns nil.
func checkUnclaimed(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout+time.Second)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil // The job has no store at the endpoint.
	}
	_, err = sendGreeting(ctx, c, w.probeGreeting())
	var taken *RankTakenError
	if errors.As(errors.Join(err, c.Close()), &taken) {
		return taken
	}
	return nil
}

// probeGreeting returns a greeting that asks whether the rank is claimed, but does not claim it.
func (w *World) probeGreeting() greeting {
	g := w.greeting(w.jobPrefix(), "")
	g.IsProbe = true
	return g
}

// attemptPrefix returns the prefix of the job's keys in the store since its latest restart.
func (w *World) attemptPrefix() string {
	return fmt.Sprintf("symmem/%s/%d", cmp.Or(w.RunID, "none"), w.Restart)
}

// jobPrefix returns a prefix that also contains the number of ranks. It identifies the job.
func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

// sizeKey returns the key under which a rank stores its WORLD_SIZE. The key does not contain the
// size, so that ranks with different sizes find it.
func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch returns the end of an error message about an absent rank that has a
// different WORLD_SIZE, or "" if there is none.
func (w *World) describeSizeMismatch(ctx context.Context, c *Client, absent []int) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRequestTimeout)
	defer cancel()
	ownSize := strconv.Itoa(w.Size)
	for _, rank := range absent {
		size, isSet, err := c.Peek(ctx, w.sizeKey(rank))
		if err == nil && isSet && string(size) != ownSize {
			return fmt.Sprintf("; WORLD_SIZE is %s on rank %d, but %s on this rank",
				size, rank, ownSize)
		}
	}
	return ""
}
