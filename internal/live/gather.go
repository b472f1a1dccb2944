package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Machine holds the states of the job's ranks on one machine: a Snapshot of each. Suppose that
// rank 0 serves a request for it, and that rank 1 runs on the same machine. Rank 0 requests the
// Snapshot of rank 1 from the socket of rank 1, which is in the folder of the job. If rank 1 does
// not answer, its Snapshot contains only its number and an error.
//
// A Snapshot can contain the latest events of each pool. eventLimit is their maximum number.

// Limits for the answers of the other ranks on this machine.
const (
	answerTimeout  = 3 * time.Second // for all ranks, which are asked at the same time
	maxAnswerBytes = 16 << 20        // for each rank
)

// ErrorEnded is the Snapshot.Error of a rank whose process has exited.
const ErrorEnded = "its process has ended"

// newMachine returns a Machine with the given Snapshots. The first one is of the rank that serves
// the request. Without Snapshots, ServedBy is 0.
func newMachine(snapshots ...Snapshot) Machine {
	host, _ := os.Hostname() // "" after an error
	m := Machine{Version: Version, Time: time.Now().UTC(), Host: host, Ranks: snapshots}
	if len(snapshots) > 0 {
		m.ServedBy = snapshots[0].Rank
	}

	return m
}

// ownSnapshot returns the Snapshot of this process's rank.
func (s *Server) ownSnapshot(eventLimit int) Snapshot {
	snapshot := s.cfg.Snapshot(eventLimit)
	snapshot.Address = s.Address()
	return snapshot
}

// readMachine returns the states of the job's ranks on this machine.
func (s *Server) readMachine(ctx context.Context, eventLimit int) Machine {
	m := newMachine(s.ownSnapshot(eventLimit))
	otherRanks, _ := Ranks(s.folder) // after an error, the result has only this rank
	otherRanks = slices.DeleteFunc(otherRanks, func(rank int) bool { return rank == s.cfg.Rank })
	others := readRanks(ctx, s.folder, otherRanks, eventLimit)
	m.Ranks = append(m.Ranks, others...)
	sortRanks(m.Ranks)
	return m
}

// Read returns the states of a job's ranks on this machine, without events. folder is the folder of
// the job. A rank that does not answer has a Snapshot.Error.
func Read(ctx context.Context, folder string) (Machine, error) {
	ranks, err := Ranks(folder)
	if err != nil {
		return Machine{}, err
	}

	m := newMachine() // ServedBy is 0, because no rank serves this request
	m.Ranks = readRanks(ctx, folder, ranks, noEvents)
	sortRanks(m.Ranks)
	return m, nil
}

// sortRanks sorts Snapshots by rank.
func sortRanks(ranks []Snapshot) {
	slices.SortFunc(ranks, func(a, b Snapshot) int { return a.Rank - b.Rank })
}

// readRanks requests the Snapshots of several ranks at the same time, and returns them in the order
// of ranks. It waits up to answerTimeout.
func readRanks(ctx context.Context, folder string, ranks []int, eventLimit int) []Snapshot {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	snapshots := make([]Snapshot, len(ranks))
	var readers sync.WaitGroup
	for i, rank := range ranks {
		readers.Go(func() {
			snapshots[i] = readRank(ctx, folder, rank, eventLimit)
		})
	}

	readers.Wait()
	return snapshots
}

// readRank requests the Snapshot of a rank. If the rank does not answer, only the fields Rank and
// Error of the result are set.
func readRank(ctx context.Context, folder string, rank, eventLimit int) Snapshot {
	s, err := requestSnapshot(ctx, folder, rank, eventLimit)
	switch {
	case err == nil: // s is the answer; otherwise, it is empty
	case errors.Is(err, syscall.ECONNREFUSED):
		s.Error = ErrorEnded
	case errors.Is(err, context.DeadlineExceeded):
		s.Error = fmt.Sprintf("no answer for %v: its process may be stopped", answerTimeout)
	default:
		s.Error = err.Error()
	}

	s.Rank = rank
	return s
}

// requestSnapshot requests the Snapshot of a rank with HTTP over its socket.
func requestSnapshot(ctx context.Context, folder string, rank, eventLimit int) (Snapshot, error) {
	transport := &http.Transport{
		DisableKeepAlives: true, // the transport is used once
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socketPath(folder, rank))
		},
	}
	url := fmt.Sprintf("http://localhost%s?events=%d", jsonPath, eventLimit)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Snapshot{}, err
	}

	client := &http.Client{Transport: transport}
	response, err := client.Do(request)
	if err != nil {
		return Snapshot{}, err
	}
	defer response.Body.Close()
	body := io.LimitReader(response.Body, maxAnswerBytes)
	var m Machine
	if err := json.NewDecoder(body).Decode(&m); err != nil {
		return Snapshot{}, err
	}

	if m.Version != Version || len(m.Ranks) != 1 {
		return Snapshot{}, fmt.Errorf(
			"the answer has version %d and describes %d ranks; want version %d and 1 rank",
			m.Version, len(m.Ranks), Version)
	}

	return m.Ranks[0], nil
}
