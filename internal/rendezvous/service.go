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

// service shares the server at one endpoint among all members of this process that use it. A rank
// may be in several worlds of a job at once, and all of them use the same address. A service is
// open while it has members. The last member closes the server.
type service struct {
	endpoint Endpoint
	server   *Server

	// members is guarded by services.mu.
	members int
	// left lists, for each world that all ranks have joined, the keys that the other ranks set when
	// they leave. Guarded by services.mu.
	left [][]string
}

// services holds the open services of this process by address.
var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service
}{byAddress: map[string]*service{}}

// serve adds a member to the service at an endpoint, and opens the service if necessary. If the
// address is in use, serve logs a warning and retries, because the address may belong to rank 0 of
// an earlier attempt, which still waits for its last clients. If the address belongs to another
// rank 0 of the same job, serve returns an error at once. It repeats this check, because a rank 0
// that has just started may not have claimed its rank yet.
func serve(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	reported := false
	var lastCheck time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := tryServe(endpoint)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, ownerErr := addressInUse(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr == nil && time.Since(lastCheck) > claimTime {
			ownerErr = checkUnclaimed(ctx, endpoint, w)
			lastCheck = time.Now()
		}
		if ownerErr != nil {
			return nil, ownerErr
		}
		if !reported {
			reported = true
			slog.Warn("symmem: the address of the store is taken; this rank tries again until its "+
				"timeout: "+advice, "address", endpoint.Address, "error", err)
		}
		if !sleepAround(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}
	}
}

func tryServe(endpoint Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.byAddress[endpoint.Address]
	if s != nil && s.endpoint.Token != endpoint.Token {
		return nil, fmt.Errorf("this process serves a store at %s already, with another token",
			endpoint.Address)
	}
	if s == nil {
		server, err := Listen(listenAddress(endpoint.Address), endpoint.Token)
		if err != nil {
			return nil, err
		}
		s = &service{endpoint: endpoint, server: server}
		services.byAddress[endpoint.Address] = s
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

// leave removes a member. It reports whether that was the last member, and the keys for which the
// last member must wait.
func (s *service) leave() (last bool, left [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	if s.members--; s.members > 0 {
		return false, nil
	}
	delete(services.byAddress, s.endpoint.Address)
	return true, s.left
}
