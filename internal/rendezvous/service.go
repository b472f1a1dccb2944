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

// Suppose that rank 0 calls Connect twice, and both times serves the store at the same address. The
// first call opens a server there. The second call finds it, and uses it too. Each call returns a
// Member. The last Member to leave closes the server, after the other ranks have left.
//
// Another process may use the address: for example, rank 0 of an earlier run, which is about to
// end. Connect then tries again until the address is free.

// service is a server that all Members of this process at one address share.
type service struct {
	endpoint Endpoint
	server   *Server

	// Guarded by services.mu:
	memberCount int // number of Members that have joined and not left
	// leaveKeys has a list for each call of Connect in which all ranks have connected: the keys that
	// the other ranks set when they leave.
	leaveKeys [][]string
}

// services holds the services of this process.
var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service // by Endpoint.Address
}{byAddress: map[string]*service{}}

// joinService adds a Member to the service at an endpoint, and opens the service if there is none.
//
// While another process uses the address, joinService retries. It returns an error if that process
// belongs to another user, or if a process has claimed rank 0 of this job there.
func joinService(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	hasWarned := false
	var lastClaimCheck time.Time
	pause := firstBackoff
	for {
		s, err := findOrOpenService(endpoint)
		isAddressInUse := errors.Is(err, syscall.EADDRINUSE)
		if !isAddressInUse {
			return s, err
		}

		advice, ownerErr := checkAddressOwner(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr != nil {
			return nil, ownerErr
		}

		// The check can take as long as claimTimeout, so it is not part of each attempt.
		isCheckDue := time.Since(lastClaimCheck) > claimTimeout
		if isCheckDue {
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

		hasPaused := sleepWithJitter(ctx, pause)
		if !hasPaused {
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

// addWorld is called when all ranks have connected in a call of Connect. The other ranks set
// leaveKeys when they leave.
func (s *service) addWorld(leaveKeys []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.leaveKeys = append(s.leaveKeys, leaveKeys)
}

// removeMember removes a Member, and reports whether it was the last. If so, it returns
// s.leaveKeys, and removes s from services so that the next Member opens a new service.
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
