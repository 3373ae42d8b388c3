// SPDX-License-Identifier: Apache-2.0
/* Callback API: one subscriber (several with cuptiSubscribe_v2, where all of them agree), callbacks per id or domain. */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define IDS 1024 /* above every callback id of a domain */
#define DOMAINS 5
#define SUBSCRIBERS 4

static const char *const driver_names[IDS] = {
#include "names_driver.inc"
};
static const char *const runtime_names[IDS] = {
#include "names_runtime.inc"
};

struct subscriber {
	uint32_t used, shared;
	CUpti_CallbackFunc function;
	void *userdata;
	char name[64];
	uint8_t enabled[DOMAINS][IDS];
};
static struct subscriber subscribers[SUBSCRIBERS];
static uint32_t n_subscribers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct subscriber *known(CUpti_SubscriberHandle handle)
{
	struct subscriber *subscriber = (struct subscriber *)handle;
	for (int i = 0; i < SUBSCRIBERS; i++)
		if (subscriber == &subscribers[i] && subscriber->used)
			return subscriber;
	return NULL;
}

static CUptiResult subscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc function, void *userdata, int shared, const char *name,
			     const char **taken_by)
{
	CUptiResult result = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
	int free = -1, agree = shared;
	if (!handle || !function)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SUBSCRIBERS; i++) {
		if (!subscribers[i].used)
			free = free < 0 ? i : free;
		else if (taken_by && !*taken_by)
			*taken_by = subscribers[i].name;
		agree = agree && (!subscribers[i].used || subscribers[i].shared);
	}
	if (free >= 0 && (!n_subscribers || agree)) {
		struct subscriber *subscriber = &subscribers[free];
		memset(subscriber, 0, sizeof(*subscriber));
		subscriber->function = function;
		subscriber->userdata = userdata;
		subscriber->shared = shared;
		snprintf(subscriber->name, sizeof(subscriber->name), "CUPTI for %s", name ? name : "<unknown>");
		__atomic_store_n(&subscriber->used, 1, __ATOMIC_RELEASE);
		n_subscribers++;
		*handle = (CUpti_SubscriberHandle)subscriber;
		result = CUPTI_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return gs_sim_result(result);
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *userdata)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	return subscribe(subscriber, callback, userdata, 0, NULL, NULL);
}

#if CUPTI_API_VERSION >= 130000
CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *userdata,
			      CUpti_SubscriberParams *parameters)
{
	const char *taken_by = NULL;
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (parameters && !parameters->structSize)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	int shared = parameters && parameters->structSize > offsetof(CUpti_SubscriberParams, allowMultipleSubscribers)
		&& parameters->allowMultipleSubscribers && gs_sim_behaviour()->several_subscribers != 0;
	CUptiResult result = subscribe(subscriber, callback, userdata, shared, parameters ? parameters->subscriberName : NULL, &taken_by);
	if (taken_by && parameters && parameters->oldSubscriberName && parameters->oldSubscriberSize)
		snprintf(parameters->oldSubscriberName, parameters->oldSubscriberSize, "%s", taken_by);
	return result;
}
#endif

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle)
{
	ENTER(GS_SIM_ALWAYS);
	pthread_mutex_lock(&lock);
	struct subscriber *subscriber = known(handle);
	if (subscriber) {
		__atomic_store_n(&subscriber->used, 0, __ATOMIC_RELEASE);
		n_subscribers--;
	}
	pthread_mutex_unlock(&lock);
	return gs_sim_result(subscriber ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER);
}

void gs_sim_unsubscribe_all(void)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SUBSCRIBERS; i++)
		subscribers[i].used = 0;
	n_subscribers = 0;
	pthread_mutex_unlock(&lock);
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain, CUpti_CallbackId id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	struct subscriber *subscriber = known(handle);
	if (!subscriber || !domain || domain >= DOMAINS || !id || id >= IDS)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	subscriber->enabled[domain][id] = enable != 0;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	struct subscriber *subscriber = known(handle);
	if (!subscriber || !domain || domain >= DOMAINS)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	memset(subscriber->enabled[domain], enable != 0, IDS);
	return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableAllDomains(uint32_t enable, CUpti_SubscriberHandle handle)
{
	for (int domain = 1; domain < DOMAINS; domain++) {
		CUptiResult result = cuptiEnableDomain(enable, handle, domain);
		if (result)
			return result;
	}
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackState(uint32_t *enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain, CUpti_CallbackId id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	struct subscriber *subscriber = known(handle);
	if (!enable || !subscriber || !domain || domain >= DOMAINS || !id || id >= IDS)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	*enable = subscriber->enabled[domain][id];
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name)
{
	ENTER(GS_SIM_ALWAYS);
	const char *const *names = domain == CUPTI_CB_DOMAIN_DRIVER_API ? driver_names : domain == CUPTI_CB_DOMAIN_RUNTIME_API ? runtime_names : NULL;
	if (!name || !names || id >= IDS || !names[id])
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	*name = names[id];
	return CUPTI_SUCCESS;
}

CUptiResult cuptiSupportedDomains(size_t *count, CUpti_DomainTable *table)
{
	static CUpti_CallbackDomain domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_RESOURCE,
						 CUPTI_CB_DOMAIN_SYNCHRONIZE};
	ENTER(GS_SIM_NEEDS_DRIVER);
	*count = sizeof(domains) / sizeof(domains[0]);
	*table = domains;
	return CUPTI_SUCCESS;
}

static void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
	for (int i = 0; i < SUBSCRIBERS && n_subscribers; i++) {
		struct subscriber *subscriber = &subscribers[i];
		if (__atomic_load_n(&subscriber->used, __ATOMIC_ACQUIRE) && id < IDS && subscriber->enabled[domain][id]) {
			if (gs_sim_behaviour()->callback_ns > 0)
				gs_sim_cupti_driver()->spend(gs_sim_behaviour()->callback_ns);
			subscriber->function(subscriber->userdata, domain, id, data);
		}
	}
}

void gs_sim_call_back(struct gs_sim_call *call, int exit)
{
	if (!__atomic_load_n(&n_subscribers, __ATOMIC_ACQUIRE))
		return;
	CUpti_CallbackData data = {
		.callbackSite = exit ? CUPTI_API_EXIT : CUPTI_API_ENTER, .functionName = call->name, .functionParams = call->params,
		.functionReturnValue = exit ? call->result : NULL, .symbolName = call->symbol, .context = (CUcontext)call->context,
		.contextUid = call->context ? call->context->id : 0, .correlationData = &call->data, .correlationId = call->correlation,
	};
	_Static_assert(offsetof(CUpti_CallbackData, correlationId) == 64, "as NVIDIA's");
	tell((CUpti_CallbackDomain)call->domain, call->cbid, &data);
}

void gs_sim_resource_back(enum gs_sim_resource what, struct gs_sim_context *context, struct gs_sim_stream *stream)
{
	CUpti_ResourceData data = {.context = (CUcontext)context, .resourceHandle.stream = (CUstream)stream};
	tell(CUPTI_CB_DOMAIN_RESOURCE, what, &data);
}

void gs_sim_waited_back(const struct gs_sim_wait *wait)
{
	CUpti_SynchronizeData data = {.context = (CUcontext)wait->context};
	if (wait->type == 3)
		tell(CUPTI_CB_DOMAIN_SYNCHRONIZE, CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, &data);
	else if (wait->type == 4)
		tell(CUPTI_CB_DOMAIN_SYNCHRONIZE, CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, &data);
}
