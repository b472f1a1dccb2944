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

var processID = rand.Text() // identifies this process in its greetings

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank         int
	OtherProcess string // description
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, "+
		"or two jobs have the same MASTER_ADDR and MASTER_PORT, or run id", e.Rank, e.OtherProcess)
}

// rankTakenAnswer begins the server's answer to a greeting for a rank that another process has
// claimed. A description of that process follows.
const rankTakenAnswer = "the rank is taken: "

// claimTimeout bounds the time from the exit of a process until the server drops its claim.
const claimTimeout = 2 * time.Second

// rankClaim identifies a rank of a job.
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

// sendGreeting claims this process's rank by sending a greeting (see greetingKey). It reports
// whether the server records which ranks have ended. If another process has claimed the rank,
// sendGreeting retries for up to claimTimeout.
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

// claimRank claims this rank of the job until the returned client is closed. A process without the
// claim must not increment the rank's counter of calls.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.greeting(w.jobPrefix(), ""))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (w *World) greeting(job, world string) greeting {
	return greeting{
		World: world, Rank: w.Rank, Job: job, Process: processID, Place: describeProcess(),
	}
}

// checkUnclaimed asks the store at endpoint whether another process has claimed this rank of the
// job. If so, it returns a RankTakenError.
func checkUnclaimed(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout+time.Second)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil // There is no store of this job at the endpoint.
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
	g.Probe = true
	return g
}

// attemptPrefix returns the key prefix for the current attempt of the job. Each restart begins a
// new one.
func (w *World) attemptPrefix() string {
	return fmt.Sprintf("symmem/%s/%d", cmp.Or(w.RunID, "none"), w.Restart)
}

// jobPrefix returns the key prefix shared by all ranks that a launcher has started together.
func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch returns "" or, if an absent rank has a different WORLD_SIZE, the end of an
// error message.
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
