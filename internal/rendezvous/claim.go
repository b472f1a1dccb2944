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

var processID = rand.Text() // sent in greetings

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank         int
	OtherProcess string
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, "+
		"or another job has the same run id or the same MASTER_ADDR and MASTER_PORT",
		e.Rank, e.OtherProcess)
}

// rankTakenAnswer is followed by a description of the process that has claimed the rank.
const rankTakenAnswer = "the rank is taken: "

// claimTimeout bounds the time until the server notices that a process has exited.
const claimTimeout = 2 * time.Second

type rankClaim struct {
	job  string
	rank int
}

func describeProcess() string {
	return fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(hostName(), "an unknown machine"))
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}

// sendGreeting claims this process's rank (see greetingKey). If another process has claimed it,
// sendGreeting retries until claimTimeout.
func sendGreeting(ctx context.Context, c *Client, g greeting) (recordsEnds bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}
	for end := time.Now().Add(claimTimeout); ; {
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

// claimRank claims this rank until the returned client is closed. Only the process with the claim
// may increment the rank's call counter.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.greeting(w.jobPrefix(), ""))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (w *World) greeting(job, keyPrefix string) greeting {
	return greeting{
		KeyPrefix: keyPrefix, Rank: w.Rank, Job: job, Process: processID,
		Description: describeProcess(),
	}
}

// checkUnclaimed returns a RankTakenError if another process has claimed this rank.
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

func (w *World) probeGreeting() greeting {
	g := w.greeting(w.jobPrefix(), "")
	g.IsProbe = true
	return g
}

func (w *World) attemptPrefix() string {
	return fmt.Sprintf("symmem/%s/%d", cmp.Or(w.RunID, "none"), w.Restart)
}

func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch returns the end of an error message, or "" if no absent rank has a different
// WORLD_SIZE.
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
