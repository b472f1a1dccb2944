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

// Limits for requests to other ranks on this machine.
const (
	answerTimeout  = 3 * time.Second // for all ranks together
	maxAnswerBytes = 16 << 20        // per rank
)

// ErrorEnded is the Snapshot.Error of a rank whose process has exited.
const ErrorEnded = "its process has ended"

func newMachine() Machine {
	host, _ := os.Hostname() // "" after an error
	return Machine{Version: Version, Time: time.Now().UTC(), Host: host}
}

// newMachineWith describes only the rank that serves the request.
func newMachineWith(own Snapshot) Machine {
	m := newMachine()
	m.ServedBy = own.Rank
	m.Ranks = []Snapshot{own}
	return m
}

// ownSnapshot returns the Snapshot of this rank, with up to eventLimit events of each pool.
func (s *Server) ownSnapshot(eventLimit int) Snapshot {
	snapshot := s.cfg.Snapshot(eventLimit)
	snapshot.Address = s.Address()
	return snapshot
}

// readMachine returns the states of the job's ranks on this machine.
func (s *Server) readMachine(ctx context.Context, eventLimit int) Machine {
	m := newMachineWith(s.ownSnapshot(eventLimit))
	otherRanks, _ := Ranks(s.folder) // none after an error
	otherRanks = slices.DeleteFunc(otherRanks, func(rank int) bool { return rank == s.cfg.Rank })
	others := readRanks(ctx, s.folder, otherRanks, eventLimit)
	m.Ranks = append(m.Ranks, others...)
	sortRanks(m.Ranks)
	return m
}

// Read returns the states of a job's ranks on this machine, without events. folder is a result of
// Jobs. A rank that does not answer has a Snapshot.Error.
func Read(ctx context.Context, folder string) (Machine, error) {
	ranks, err := Ranks(folder)
	if err != nil {
		return Machine{}, err
	}

	m := newMachine()
	m.Ranks = readRanks(ctx, folder, ranks, noEvents)
	sortRanks(m.Ranks)
	return m, nil
}

func sortRanks(ranks []Snapshot) {
	slices.SortFunc(ranks, func(a, b Snapshot) int { return a.Rank - b.Rank })
}

// readRanks returns one Snapshot for each of ranks, in the same order, within answerTimeout.
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

// readRank sets only Rank and Error if the rank does not answer.
func readRank(ctx context.Context, folder string, rank, eventLimit int) Snapshot {
	s, err := requestSnapshot(ctx, folder, rank, eventLimit)
	if err != nil {
		s.Error = describeFailure(err)
	}

	s.Rank = rank
	return s
}

func describeFailure(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ErrorEnded
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer for %v: its process may be stopped", answerTimeout)
	}

	return err.Error()
}

// requestSnapshot requests the Snapshot of a rank from its socket.
func requestSnapshot(ctx context.Context, folder string, rank, eventLimit int) (Snapshot, error) {
	transport := &http.Transport{
		DisableKeepAlives: true, // the transport serves only one request
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
