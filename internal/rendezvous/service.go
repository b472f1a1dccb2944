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

// service shares the server at one endpoint among all members of this process that use it: ranks
// may be in several worlds of one job at once, and all these worlds use one address. A service is
// open while it has members. The last member closes its server.
type service struct {
	at     Endpoint
	server *Server

	// members is guarded by services.mu.
	members int
	// left lists, for each world that all ranks have joined, the keys that the other ranks set when
	// they leave. Guarded by services.mu.
	left [][]string
}

// services holds the open services of this process by address.
var services = struct {
	mu sync.Mutex
	at map[string]*service
}{at: map[string]*service{}}

// serve adds a member to the service at an endpoint, and opens the service if necessary. If the
// address is in use, it may belong to rank 0 of an earlier attempt, which still waits for its last
// clients. So serve logs a warning and retries. It returns an error at once if the address belongs
// to another rank 0 of the same job. It repeats this check, since a rank 0 that has just started
// may not have claimed its rank yet.
func serve(ctx context.Context, at Endpoint, w *World) (*service, error) {
	reported := false
	var checked time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := tryServe(at)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, ownerErr := addressInUse(ctx, at, uint32(os.Geteuid()))
		if ownerErr == nil && time.Since(checked) > claimTime {
			ownerErr = claimedBy(ctx, at, w)
			checked = time.Now()
		}
		if ownerErr != nil {
			return nil, ownerErr
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

// tryServe tries once to serve.
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

// keep records the keys of a world that all ranks have joined.
func (s *service) keep(left []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.left = append(s.left, left)
}

// leave removes a member. It reports whether that was the last member, and then also returns the
// keys to wait for.
func (s *service) leave() (last bool, left [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	if s.members--; s.members > 0 {
		return false, nil
	}
	delete(services.at, s.at.Address)
	return true, s.left
}
