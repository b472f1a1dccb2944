package rendezvous

import "slices"

// startWait executes a WAIT, whose reply comes when none of the keys is missing.
func (t *table) startWait(from clientID, keys []string) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}

	w := &waiter{client: from, missingKeys: map[string]bool{}}
	for _, key := range keys {
		if t.isMissing(key) {
			w.missingKeys[key] = true
		}
	}

	if len(w.missingKeys) == 0 {
		t.addReply(from, []byte{replyWaitOver})
		return nil
	}

	for key := range w.missingKeys {
		t.waitersByKey[key] = append(t.waitersByKey[key], w)
	}

	t.waiterByClient[from] = w
	return nil
}

// wakeWaiters ends each wait whose last missing key has just been set.
func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissingKey(w, key)
	}
}

// removeMissingKey removes a key from w.missingKeys and ends the wait after the last one. The
// caller must have removed w from t.waitersByKey[key].
func (t *table) removeMissingKey(w *waiter, key string) {
	delete(w.missingKeys, key)
	if len(w.missingKeys) == 0 {
		t.replyToWaiter(w.client)
	}
}

// replyToWaiter ends the wait of a client.
func (t *table) replyToWaiter(client clientID) {
	delete(t.waiterByClient, client)
	t.addReply(client, []byte{replyWaitOver})
}

// removeWaiter removes w from the waiters for a key.
func (t *table) removeWaiter(w *waiter, key string) {
	isWaiter := func(other *waiter) bool { return other == w }
	remaining := slices.DeleteFunc(t.waitersByKey[key], isWaiter)
	if len(remaining) == 0 {
		delete(t.waitersByKey, key)
	} else {
		t.waitersByKey[key] = remaining
	}
}

// arriveAtBarrier executes a BARRIER. The barrier opens for all clients at the required number of
// arrivals, and stays open.
func (t *table) arriveAtBarrier(from clientID, key string, required int64) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}

	b := t.barriers[key]
	if b == nil {
		b = &barrier{}
		t.barriers[key] = b
	}

	b.arrivalCount++
	b.clients = append(b.clients, from)
	t.waiterByClient[from] = &waiter{client: from, barrier: b}
	if b.arrivalCount < required {
		return nil
	}

	for _, client := range b.clients {
		t.replyToWaiter(client)
	}

	b.clients = nil
	return nil
}

// endWait ends the wait of a client that has canceled it or disconnected. The client gets no
// replyWaitOver, but its arrival at a barrier still counts.
func (t *table) endWait(client clientID) {
	w := t.waiterByClient[client]
	if w == nil {
		return
	}

	delete(t.waiterByClient, client)
	for key := range w.missingKeys {
		t.removeWaiter(w, key)
	}

	if w.barrier != nil {
		isClient := func(other clientID) bool { return other == client }
		w.barrier.clients = slices.DeleteFunc(w.barrier.clients, isClient)
	}
}
