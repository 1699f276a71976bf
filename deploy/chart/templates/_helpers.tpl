{{- define "gpu-admission.selector" -}}
app.kubernetes.io/name: gpu-admission
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "gpu-admission.labels" -}}
app.kubernetes.io/name: gpu-admission
app.kubernetes.io/part-of: gpu-admission
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the API server calls us, and therefore the name in the certificate. */}}
{{- define "gpu-admission.serverName" -}}
gpu-admission.{{ .Release.Namespace }}.svc
{{- end }}

{{/* One image; arguments are the root, its values, and the repository if they have none. */}}
{{- define "gpu-admission.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{ if not $root.Values.image.repository }}
{{- fail "image.repository must be set: build the image with deploy/Dockerfile, push it to a registry of yours, and add --set image.repository=REGISTRY/gpu-admission" }}
{{- end }}
{{- $image.repository | default (index . 2) }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What both Deployments have in common: arguments are the root, the component, and its values. */}}
{{- define "gpu-admission.podMetadata" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
labels:
  {{- include "gpu-admission.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ $component }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpu-admission.podSpec" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
serviceAccountName: gpu-admission-{{ $component }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- if $values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with $values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" $values.hostNetwork) }}
dnsPolicy: {{ . }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- range $key, $when := dict "kubernetes.io/hostname" ($values.whenUnsatisfiable | default "ScheduleAnyway") "topology.kubernetes.io/zone" "ScheduleAnyway" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: {{ $when }}
  # Each version of the pods for itself: else the old ones would decide where the new ones may go.
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels: {{- include "gpu-admission.selector" $component | nindent 6 }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A pod that runs one command to its end, as the controller would. Arguments: the root, the ServiceAccount, the name of the container,
and its arguments. */}}
{{- define "gpu-admission.runsOnce" -}}
{{- $root := index . 0 }}{{ $controller := $root.Values.controller -}}
serviceAccountName: {{ index . 1 }}
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: Never
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $controller.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $controller.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $controller.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
- name: {{ index . 2 }}
  {{- include "gpu-admission.container" (list $root "controller" $controller) | nindent 2 }}
  args: {{ index . 3 | toJson }}
{{- end }}

{{- define "gpu-admission.container" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
image: {{ include "gpu-admission.image" (list $root $root.Values.image "") | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml $values.resources | nindent 2 }}
{{- with $values.extraEnv }}
env: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* One ServiceAccount; the arguments are those of podMetadata. */}}
{{- define "gpu-admission.serviceAccount" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: gpu-admission-{{ $component }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "gpu-admission.labels" $root | nindent 4 }}
  {{- with $values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}

{{/* Binds a role to a ServiceAccount of ours. Arguments: the root, the component, the kind of role, its name, and of a Role its
namespace. */}}
{{- define "gpu-admission.binding" -}}
{{- $root := index . 0 }}{{ $kind := index . 2 }}{{ $name := index . 3 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- if eq $kind "Role" }}
  namespace: {{ index . 4 }}
  {{- end }}
  labels: {{- include "gpu-admission.labels" $root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: gpu-admission-{{ index . 1 }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}

{{/* Pods without any of this never reach us. One slash in the name of a resource makes it an extended one, so that a new kind
of GPU needs no change here; then DRA claims, annotations of fraction schedulers, requests for our help. Everything optional
is guarded: an error would refuse the pod. The schema keeps keys of annotations from holding a quote. The arguments are the root, and
where the pod stands. */}}
{{- define "gpu-admission.asksForAnAccelerator" -}}
{{- $root := index . 0 }}{{ $pod := index . 1 -}}
{{- range list "containers" "initContainers" }}
(has({{ $pod }}.spec.{{ . }}) && {{ $pod }}.spec.{{ . }}.exists(c, has(c.resources) &&
  ((has(c.resources.limits) && c.resources.limits.exists(k, k.contains('/'))) ||
   (has(c.resources.requests) && c.resources.requests.exists(k, k.contains('/')))))) ||
{{- end }}
(has({{ $pod }}.spec.resourceClaims) && size({{ $pod }}.spec.resourceClaims) > 0) ||
(has({{ $pod }}.spec.schedulingGates) && {{ $pod }}.spec.schedulingGates.exists(g, g.name == 'gpu-admission.dev/quota')) ||
(has({{ $pod }}.metadata.annotations) && {{ $pod }}.metadata.annotations.exists(k,
  k in {{ include "gpu-admission.fractionAnnotations" $root }} || k.startsWith('gpu-admission.dev/')))
{{- end }}

{{/* The keys of annotations that ask for a part of a GPU. `is_reviewed` in webhook/evaluation/creation.py knows them by the mappings. */}}
{{- define "gpu-admission.fractionAnnotations" -}}
['gpu-fraction', 'gpu-memory', 'gpu-fraction-num-devices'{{ range .Values.webhooks.fractionAnnotations }}, '{{ . }}'{{ end }}]
{{- end }}

{{/* Ends the path that is called for GPU pods, which is all that the API server's message shows of ours while we are away. */}}
{{- define "gpu-admission.whileAway" -}}
gpu-pods-are-refused-while-this-webhook-is-away.try-again-in-a-minute.then-ask-your-cluster-administrators
{{- end }}

{{/* One webhook but for its rules. Arguments: the root, its name, `gpu` for what is refused while we are away or `look` for what
is done without, the path, and whether it reserves (never on a dry run). */}}
{{- define "gpu-admission.webhook" -}}
{{- $root := index . 0 }}{{ $gpu := eq (index . 2) "gpu" }}{{ $webhooks := $root.Values.webhooks -}}
name: {{ index . 1 }}
admissionReviewVersions: [v1]
{{- if and (ne $webhooks.matchConditions "always") (not (or $webhooks.namespaceSelector.matchLabels $webhooks.namespaceSelector.matchExpressions)) }}
{{- fail "webhooks.matchConditions: never needs webhooks.namespaceSelector: without it, every pod of the cluster waits for the webhook" }}
{{- end }}
sideEffects: {{ if index . 4 }}NoneOnDryRun{{ else }}None{{ end }}
failurePolicy: {{ if $gpu }}{{ $webhooks.failurePolicy }}{{ else }}Ignore{{ end }}
matchPolicy: Equivalent
timeoutSeconds: {{ if $gpu }}{{ $webhooks.timeoutSeconds }}{{ else }}2{{ end }}
clientConfig:
  service: {namespace: {{ $root.Release.Namespace }}, name: gpu-admission, path: {{ index . 3 }}{{ if $gpu }}/{{ include "gpu-admission.whileAway" . }}{{ end }}, port: 443}
{{ include "gpu-admission.selectors" $root }}
{{- end }}

{{/* Whose objects webhooks and policies look at. The argument is the root. */}}
{{- define "gpu-admission.selectors" -}}
{{- $webhooks := .Values.webhooks -}}
namespaceSelector:
  {{- with $webhooks.namespaceSelector.matchLabels }}
  matchLabels: {{- toYaml . | nindent 4 }}
  {{- end }}
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ concat (list "kube-system" "kube-node-lease" .Release.Namespace) $webhooks.excludedNamespaces | uniq | toJson }}
  {{- with $webhooks.namespaceSelector.matchExpressions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $webhooks.objectSelector }}
objectSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
