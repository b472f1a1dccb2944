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

// processID is a random text that distinguishes this process from others in greetings.
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

// rankTakenAnswer starts the server's answer to a greeting if another process has claimed the rank.
// A description of that process follows it.
const rankTakenAnswer = "the rank is taken: "

// claimTimeout limits how long a process tries to claim a rank that is taken. If the process with
// the claim has exited, the server notices this within claimTimeout.
const claimTimeout = 2 * time.Second

// claimPause is the mean pause between two attempts to claim a rank.
const claimPause = maxBackoff / 10

// rankClaim identifies a rank that a process has claimed. Its connection to the store holds the
// claim, so the claim ends with the process.
type rankClaim struct {
	job  string // a World.jobPrefix
	rank int
}

// describeProcess returns a description of this process for users.
func describeProcess() string {
	return fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(hostName(), "an unknown machine"))
}

// hostName returns the machine's name, or "" if it cannot be read.
func hostName() string {
	name, _ := os.Hostname()
	return name
}

// sendGreeting sends a greeting, by which a process claims its rank. A greeting that is a probe
// only asks whether the rank is claimed. If another process has claimed the rank, sendGreeting
// retries until claimTimeout. It then returns a RankTakenError.
//
// recordsEnds reports whether the server records the ends of ranks. symmem's server does, but
// PyTorch's does not.
func sendGreeting(ctx context.Context, c *Client, g greeting) (recordsEnds bool, err error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return false, err
	}

	end := time.Now().Add(claimTimeout)
	for {
		// PyTorch's server answers with the expected value, which is encoded, and changes nothing.
		answer, err := c.CompareSet(ctx, greetingKey, encoded, encoded)
		if err != nil {
			return false, err
		}

		otherProcess, isTaken := strings.CutPrefix(string(answer), rankTakenAnswer)
		if !isTaken {
			return string(answer) == greetingAnswer, nil
		}

		isLate := time.Now().After(end)
		if isLate || !sleepWithJitter(ctx, claimPause) { // ctx may be done first.
			return false, &RankTakenError{Rank: g.Rank, OtherProcess: otherProcess}
		}
	}
}

// claimRank claims this rank on a new connection. The claim lasts until the returned client is
// closed. Only the process with the claim may count a call of Connect for the rank.
func (w *World) claimRank(ctx context.Context, store *Client) (*Client, error) {
	c := newClient(store.addr, store.dial)
	_, err := sendGreeting(ctx, c, w.greeting(w.jobPrefix(), unknownPrefix))
	if err != nil {
		closeErr := c.Close()
		return nil, errors.Join(err, closeErr)
	}

	return c, nil
}

// unknownPrefix stands for a key prefix in greetings before Connect has determined it.
const unknownPrefix = ""

// greeting returns the greeting of this process. keyPrefix is the prefix of the world's keys in the
// store, or unknownPrefix.
func (w *World) greeting(job, keyPrefix string) greeting {
	return greeting{
		KeyPrefix: keyPrefix, Rank: w.Rank, Job: job, Process: processID,
		Description: describeProcess(),
	}
}

// checkUnclaimed returns a RankTakenError if another process has claimed this rank in the store at
// the endpoint. It returns nil if the rank is free or if the job has no store there.
func checkUnclaimed(ctx context.Context, endpoint Endpoint, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout+time.Second)
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

	return nil // The rank is free, or the store has failed.
}

// probeGreeting returns a greeting that asks whether the rank is claimed, but does not claim it.
func (w *World) probeGreeting() greeting {
	g := w.greeting(w.jobPrefix(), unknownPrefix)
	g.IsProbe = true
	return g
}

// attemptPrefix returns the prefix of the job's keys in the store. It changes when the launcher
// restarts the ranks.
func (w *World) attemptPrefix() string {
	return fmt.Sprintf("symmem/%s/%d", cmp.Or(w.RunID, "none"), w.Restart)
}

// jobPrefix returns a prefix that identifies the job: attemptPrefix and the number of ranks.
func (w *World) jobPrefix() string { return fmt.Sprintf("%s/%d", w.attemptPrefix(), w.Size) }

// sizeKey returns the key under which a rank stores its number of ranks, WORLD_SIZE. The key does
// not contain this number, so that ranks with a different one find it.
func (w *World) sizeKey(rank int) string {
	return fmt.Sprintf("%s/size of %d", w.attemptPrefix(), rank)
}

// describeSizeMismatch returns the end of an error message about an absent rank that has a
// different WORLD_SIZE than this rank. It returns "" if no absent rank is known to have one. It
// also works after the end of ctx.
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
