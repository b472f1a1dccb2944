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

const (
	// answerTimeout limits how long a rank may take to answer.
	answerTimeout = 3 * time.Second
	// maxAnswer limits the size of a rank's answer, in bytes.
	maxAnswer = 16 << 20
)

// ErrorEnded is the Snapshot.Error of a rank whose process has exited.
const ErrorEnded = "its process has ended"

// newMachine returns a Machine that describes ranks. The first rank serves the request.
func newMachine(ranks ...Snapshot) Machine {
	host, _ := os.Hostname()
	m := Machine{Version: Version, Time: time.Now().UTC(), Host: host, Ranks: ranks}
	if len(ranks) > 0 {
		m.ServedBy = ranks[0].Rank
	}
	return m
}

func (s *Server) snapshot(events int) Snapshot {
	snapshot := s.cfg.Snapshot(events)
	snapshot.Address = s.Address()
	return snapshot
}

// readAll returns the states of all ranks of the job on this machine. events is the maximum number
// of events to include for each pool.
func (s *Server) readAll(ctx context.Context, events int) Machine {
	m := newMachine(s.snapshot(events))
	ranks, _ := Ranks(s.folder) // fails if the folder was removed, because there are no other ranks
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return rank == s.cfg.Rank })
	m.Ranks = append(m.Ranks, readRanks(ctx, s.folder, ranks, events)...)
	sortRanks(m.Ranks)
	return m
}

// Read returns the states of all ranks of a job on this machine. folder is the folder of the job.
func Read(ctx context.Context, folder string) (Machine, error) {
	ranks, err := Ranks(folder)
	if err != nil {
		return Machine{}, err
	}
	m := newMachine()
	m.Ranks = readRanks(ctx, folder, ranks, 0)
	sortRanks(m.Ranks)
	return m, nil
}

func sortRanks(ranks []Snapshot) {
	slices.SortFunc(ranks, func(a, b Snapshot) int { return a.Rank - b.Rank })
}

func readRanks(ctx context.Context, folder string, ranks []int, events int) []Snapshot {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	all := make([]Snapshot, len(ranks))
	var reading sync.WaitGroup
	for i, rank := range ranks {
		reading.Go(func() { all[i] = readRank(ctx, folder, rank, events) })
	}
	reading.Wait()
	return all
}

// readRank reads the state of a rank from the rank's socket. If that fails, it sets Snapshot.Error.
func readRank(ctx context.Context, folder string, rank, events int) Snapshot {
	s, err := fetch(ctx, folder, rank, events)
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

func fetch(ctx context.Context, folder string, rank, events int) (Snapshot, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socketPath(folder, rank))
		},
	}
	url := fmt.Sprintf("http://localhost%s?events=%d", jsonPath, events)
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
	err = json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&m)
	if err == nil && (m.Version != Version || len(m.Ranks) != 1) {
		err = fmt.Errorf("the answer describes %d ranks in version %d; want 1 rank in version %d",
			len(m.Ranks), m.Version, Version)
	}
	if err != nil {
		return Snapshot{}, err
	}
	return m.Ranks[0], nil
}
