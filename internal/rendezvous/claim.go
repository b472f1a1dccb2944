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

var processID = rand.Text()

// RankTakenError means that another process has claimed the same rank of the job.
type RankTakenError struct {
	Rank   int
	Holder string // description of the other process
}

func (e *RankTakenError) Error() string {
	return fmt.Sprintf("rank %d of this job is already connected, from %s: it was started twice, or "+
		"two jobs have the same MASTER_ADDR and MASTER_PORT, or run id", e.Rank, e.Holder)
}

// takenAnswer begins the server's answer to a greeting if another process has claimed the rank. A
// description of that process follows.
const takenAnswer = "the rank is taken: "

// claimTime bounds how long the server keeps the claim of a process that has exited.
const claimTime = 2 * time.Second

// rankClaim identifies a rank of a job. Only one process at a time can claim it.
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

// greet claims this process's rank by a greeting (see greetKey). It reports whether the server
// records which ranks have ended. While another process holds the claim, greet retries for up to
// claimTime.
func greet(ctx context.Context, c *Client, g greeting) (recordsEnds bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}
	for end := time.Now().Add(claimTime); ; {
		answer, err := c.CompareSet(ctx, greetKey, encoded, encoded)
		if err != nil {
			return false, err
		}
		holder, taken := strings.CutPrefix(string(answer), takenAnswer)
		if !taken {
			return string(answer) == greetAnswer, nil
		}
		if time.Now().After(end) || !sleepWithJitter(ctx, maxBackoff/10) {
			return false, &RankTakenError{Rank: g.Rank, Holder: holder}
		}
	}
}

// claim claims this rank of the job until the returned client is closed. A process whose claim is
// refused must not increment the rank's call counter, so claim comes first.
func (w *World) claim(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := greet(ctx, c, w.greeting(w.job(), ""))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (w *World) greeting(job, world string) greeting {
	return greeting{World: world, Rank: w.Rank, Job: job, Process: processID, Place: describeProcess()}
}

// checkUnclaimed returns a RankTakenError if, according to the store at endpoint, another process
// has claimed this rank of the job.
func checkUnclaimed(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime+time.Second)
	defer cancel()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		return nil // There is no store of this job at the endpoint.
	}
	_, err = greet(ctx, c, w.probe())
	var taken *RankTakenError
	if errors.As(errors.Join(err, c.Close()), &taken) {
		return taken
	}
	return nil
}

func (w *World) probe() greeting {
	g := w.greeting(w.job(), "")
	g.Probe = true
	return g
}

// attempt returns the key prefix for the current attempt of the job. Each restart begins a new one.
func (w *World) attempt() string {
	return fmt.Sprintf("symmem/%s/%d", cmp.Or(w.RunID, "none"), w.Restart)
}

// job returns the key prefix shared by all ranks that a launcher has started together.
func (w *World) job() string { return fmt.Sprintf("%s/%d", w.attempt(), w.Size) }

func (w *World) sizeKey(rank int) string { return fmt.Sprintf("%s/size of %d", w.attempt(), rank) }

// sizeMismatch returns a suffix for an error message if an absent rank has a different WORLD_SIZE.
func (w *World) sizeMismatch(ctx context.Context, c *Client, absent []int) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	own := strconv.Itoa(w.Size)
	for _, rank := range absent {
		size, set, err := c.Peek(ctx, w.sizeKey(rank))
		if err == nil && set && string(size) != own {
			return fmt.Sprintf("; WORLD_SIZE is %s on rank %d, but %s on this rank", size, rank, own)
		}
	}
	return ""
}
