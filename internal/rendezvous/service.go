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

// service shares a server among all members in this process. The last member to leave closes it.
type service struct {
	endpoint Endpoint
	server   *Server

	// Guarded by services.mu:
	memberCount int // number of members that have joined and not left
	// leaveKeys has an element for each world that all ranks have joined. It lists the keys that the
	// other ranks set when they leave the world.
	leaveKeys [][]string
}

// services holds the services of this process.
var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service // by Endpoint.Address
}{byAddress: map[string]*service{}}

// joinService returns the service at an endpoint, which it opens if this process has none, and
// counts a new member. While another process uses the address, joinService retries, because that
// process may be rank 0 of an earlier run. It returns an error if that process has claimed rank 0
// of this job.
func joinService(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	hasWarned := false
	var lastCheck time.Time
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		s, err := findOrOpenService(endpoint)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		advice, ownerErr := checkAddressOwner(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr == nil && time.Since(lastCheck) > claimTimeout {
			ownerErr = checkUnclaimed(ctx, endpoint, w)
			lastCheck = time.Now()
		}
		if ownerErr != nil {
			return nil, ownerErr
		}
		if !hasWarned {
			hasWarned = true
			slog.Warn("symmem: the address of the store is in use; this rank tries again until its "+
				"timeout: "+advice, "address", endpoint.Address, "error", err)
		}
		if !sleepWithJitter(ctx, pause) {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}
	}
}

// findOrOpenService is joinService without retries.
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

// addWorld adds a world that all ranks have joined.
func (s *service) addWorld(leaveKeys []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.leaveKeys = append(s.leaveKeys, leaveKeys)
}

// removeMember removes a member and reports whether it was the last one. For the last one, it also
// returns leaveKeys, and removes s from services, so that the next member opens a new service.
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
