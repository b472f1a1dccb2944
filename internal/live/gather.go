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

// Limits for the answers of the other ranks on this machine.
const (
	answerTimeout  = 3 * time.Second // for all ranks together
	maxAnswerBytes = 16 << 20        // for each rank
)

// ErrorEnded is the Snapshot.Error of a rank whose process has exited.
const ErrorEnded = "its process has ended"

// newMachine returns a Machine with the given ranks. The first of them, if any, is named as the
// rank that serves the request.
func newMachine(snapshots ...Snapshot) Machine {
	host, _ := os.Hostname()
	m := Machine{Version: Version, Time: time.Now().UTC(), Host: host, Ranks: snapshots}
	if len(snapshots) > 0 {
		m.ServedBy = snapshots[0].Rank
	}
	return m
}

// ownSnapshot returns the state of this process's rank, with up to eventLimit events per pool.
func (s *Server) ownSnapshot(eventLimit int) Snapshot {
	snapshot := s.cfg.Snapshot(eventLimit)
	snapshot.Address = s.Address()
	return snapshot
}

// readMachine returns the states of the job's ranks on this machine, with up to eventLimit events
// per pool.
func (s *Server) readMachine(ctx context.Context, eventLimit int) Machine {
	m := newMachine(s.ownSnapshot(eventLimit))
	ranks, _ := Ranks(s.folder) // If the folder was removed, the result has only this rank.
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return rank == s.cfg.Rank })
	m.Ranks = append(m.Ranks, readRanks(ctx, s.folder, ranks, eventLimit)...)
	sortRanks(m.Ranks)
	return m
}

// Read returns the states of a job's ranks on this machine, without events. The folder contains
// the ranks' sockets. A rank that does not answer has a Snapshot.Error.
func Read(ctx context.Context, folder string) (Machine, error) {
	ranks, err := Ranks(folder)
	if err != nil {
		return Machine{}, err
	}
	m := newMachine()
	const eventLimit = 0
	m.Ranks = readRanks(ctx, folder, ranks, eventLimit)
	sortRanks(m.Ranks)
	return m, nil
}

func sortRanks(ranks []Snapshot) {
	slices.SortFunc(ranks, func(a, b Snapshot) int { return a.Rank - b.Rank })
}

// readRanks requests the states of several ranks at once, and waits up to answerTimeout for all.
func readRanks(ctx context.Context, folder string, ranks []int, eventLimit int) []Snapshot {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	snapshots := make([]Snapshot, len(ranks))
	var readers sync.WaitGroup
	for i, rank := range ranks {
		readers.Go(func() { snapshots[i] = readRank(ctx, folder, rank, eventLimit) })
	}
	readers.Wait()
	return snapshots
}

// readRank returns the state of a rank, or a Snapshot with only Rank and Error if it does not
// answer.
func readRank(ctx context.Context, folder string, rank, eventLimit int) Snapshot {
	s, err := requestSnapshot(ctx, folder, rank, eventLimit)
	switch {
	case err == nil:
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

// requestSnapshot requests a rank's state with HTTP over its Unix socket.
func requestSnapshot(ctx context.Context, folder string, rank, eventLimit int) (Snapshot, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socketPath(folder, rank))
		},
	}
	url := fmt.Sprintf("http://localhost%s?events=%d", jsonPath, eventLimit)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Snapshot{}, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return Snapshot{}, err
	}
	defer response.Body.Close()
	var m Machine
	err = json.NewDecoder(io.LimitReader(response.Body, maxAnswerBytes)).Decode(&m)
	if err == nil && (m.Version != Version || len(m.Ranks) != 1) {
		err = fmt.Errorf("the answer has version %d and describes %d ranks; want version %d and 1 rank",
			m.Version, len(m.Ranks), Version)
	}
	if err != nil {
		return Snapshot{}, err
	}
	return m.Ranks[0], nil
}
