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

// service shares one server among all members of this process. A member is the result of a call of
// Connect, and a process can call it several times. The last member to leave closes the server.
type service struct {
	endpoint Endpoint
	server   *Server

	// Guarded by services.mu:
	memberCount int // number of members that have joined and not left
	// leaveKeys has an element for each call of Connect in which all ranks have connected. The
	// element lists the keys that the other ranks set when they leave.
	leaveKeys [][]string
}

// services holds the services of this process.
var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service // by Endpoint.Address
}{byAddress: map[string]*service{}}

// joinService adds a member to the service at an endpoint and returns the service. It opens the
// service if this process has none there.
//
// While another process uses the address, joinService retries. That process may be rank 0 of an
// earlier run, which is about to end. joinService returns an error if it belongs to another user,
// or if it has claimed rank 0 of this job.
func joinService(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	hasWarned := false
	var lastClaimCheck time.Time
	pause := firstBackoff
	for {
		s, err := findOrOpenService(endpoint)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}

		advice, ownerErr := checkAddressOwner(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr != nil {
			return nil, ownerErr
		}

		// The check can take claimTimeout, so it is not part of each attempt.
		if time.Since(lastClaimCheck) > claimTimeout {
			claimErr := checkRankNotTaken(ctx, endpoint, w)
			if claimErr != nil {
				return nil, claimErr
			}

			lastClaimCheck = time.Now()
		}

		if !hasWarned {
			hasWarned = true
			slog.Warn("symmem: the address of the store is in use; this rank tries again until its "+
				"timeout: "+advice, "address", endpoint.Address, "error", err)
		}

		if !sleepWithJitter(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}

		pause = min(2*pause, maxBackoff)
	}
}

// findOrOpenService is joinService without retries. It returns EADDRINUSE if another process uses
// the address.
func findOrOpenService(endpoint Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.byAddress[endpoint.Address]
	if s != nil && s.endpoint.Token != endpoint.Token {
		return nil, fmt.Errorf("this process already serves a store at %s, with another token",
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

	s.memberCount++
	return s, nil
}

// addWorld adds an element to s.leaveKeys, after all ranks have connected.
func (s *service) addWorld(leaveKeys []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.leaveKeys = append(s.leaveKeys, leaveKeys)
}

// removeMember removes a member. isLast is true if it was the last one. In this case, removeMember
// also returns s.leaveKeys, and removes s from services so that the next member opens a new one.
func (s *service) removeMember() (isLast bool, leaveKeys [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.memberCount--
	if s.memberCount > 0 {
		return false, nil
	}

	delete(services.byAddress, s.endpoint.Address)
	return true, s.leaveKeys
}
