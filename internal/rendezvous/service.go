package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// service shares the server at one endpoint between all members that this process has there: ranks
// may be in several worlds of one job at once, and all these worlds use one address. It is open
// while it has members; the last member becomes its only owner and closes it.
type service struct {
	at     Endpoint
	server *Server

	// Guarded by services.mu.
	members int
	// left lists, for each world of its members, the keys that say that the other ranks have left
	// it.
	left [][]string
}

// services holds the open services of this process by address.
var services = struct {
	mu sync.Mutex
	at map[string]*service
}{at: map[string]*service{}}

// serve adds a member to the service at an endpoint, and opens the service if necessary. If the
// address is in use, it may belong to the rank 0 of an earlier attempt, which waits for its last
// clients: serve logs a warning and waits. It fails at once if that process is the rank 0 of the
// same job. It repeats this check, since a rank 0 that has just started claims its rank soon.
func serve(ctx context.Context, at Endpoint, w *World) (*service, error) {
	reported := false
	var asked time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := tryServe(at)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, foreign := addressInUse(ctx, at, uint32(os.Geteuid()))
		if foreign == nil && time.Since(asked) > claimTime {
			foreign = takenBy(ctx, at, w)
			asked = time.Now()
		}
		if foreign != nil {
			return nil, foreign
		}
		if !reported {
			reported = true
			slog.Warn("symmem: the address of the store is taken; this rank tries again until its "+
				"timeout: "+advice, "address", at.Address, "error", err)
		}
		if !sleepAround(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}
	}
}

// tryServe makes one attempt to serve.
func tryServe(at Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.at[at.Address]
	if s != nil && s.at.Token != at.Token {
		return nil, fmt.Errorf("this process serves a store at %s already, with another token",
			at.Address)
	}
	if s == nil {
		server, err := Listen(listenAddress(at.Address), at.Token)
		if err != nil {
			return nil, err
		}
		s = &service{at: at, server: server}
		services.at[at.Address] = s
	}
	s.members++
	return s, nil
}

// keep records a world that all ranks have joined.
func (s *service) keep(left []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.left = append(s.left, left)
}

// leave removes a member. It reports whether it was the last one, and returns the keys to wait for
// in that case.
func (s *service) leave() (last bool, left [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	if s.members--; s.members > 0 {
		return false, nil
	}
	delete(services.at, s.at.Address)
	return true, s.left
}
