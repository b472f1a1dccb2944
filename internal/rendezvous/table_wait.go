package rendezvous

import "slices"

// startWait executes a WAIT. It replies at once if no key is missing.
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

// wakeWaiters removes a key that has been set from its waiters. Waits without other missing keys
// end.
func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissingKey(w, key)
	}
}

// removeMissingKey removes a key from w.missingKeys, and ends the wait if it was the last. The
// caller must have removed w from t.waitersByKey[key].
func (t *table) removeMissingKey(w *waiter, key string) {
	delete(w.missingKeys, key)
	if len(w.missingKeys) == 0 {
		t.finishWait(w.client)
	}
}

// finishWait replies to the WAIT or BARRIER of a client.
func (t *table) finishWait(client clientID) {
	delete(t.waiterByClient, client)
	t.addReply(client, []byte{replyWaitOver})
}

// unlistWaiter removes w from t.waitersByKey[key].
func (t *table) unlistWaiter(w *waiter, key string) {
	isWaiter := func(other *waiter) bool { return other == w }
	remaining := slices.DeleteFunc(t.waitersByKey[key], isWaiter)
	if len(remaining) == 0 {
		delete(t.waitersByKey, key)
	} else {
		t.waitersByKey[key] = remaining
	}
}

// arriveAtBarrier executes a BARRIER. The barrier opens when the number of arrivals reaches
// required.
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
	b.blocked = append(b.blocked, from)
	t.waiterByClient[from] = &waiter{client: from, barrier: b}
	if b.arrivalCount < required {
		return nil
	}

	for _, client := range b.blocked {
		t.finishWait(client)
	}

	b.blocked = nil
	return nil
}

// cancelWait ends the wait of a client, if any, without replying to it. The client's arrival at a
// barrier still counts.
func (t *table) cancelWait(client clientID) {
	w := t.waiterByClient[client]
	if w == nil {
		return
	}

	delete(t.waiterByClient, client)
	for key := range w.missingKeys {
		t.unlistWaiter(w, key)
	}

	if w.barrier != nil {
		isClient := func(other clientID) bool { return other == client }
		w.barrier.blocked = slices.DeleteFunc(w.barrier.blocked, isClient)
	}
}
